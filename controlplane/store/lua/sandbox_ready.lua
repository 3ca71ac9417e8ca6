-- A: sandbox, max_age_s. Returns the session to bind, or false.
local sandbox = need('sandboxes', A.sandbox, 'sandbox')
if sandbox.state == 'ready' then return false end
if sandbox.state == 'claimed' then return redis.call('HGET', key('sessions'), sandbox.session) end
next_state(SANDBOX, sandbox.state, 'ready', 'Sandbox ' .. A.sandbox)

local function first_waiting(fit)
  local from, step = 0, 32
  while true do
    local ids = redis.call('ZRANGE', key('waiters', sandbox.pool), from, from + step - 1)
    for _, id in ipairs(ids) do
      local session = load('sessions', id)
      -- One whose time is over stays for due_sessions to end.
      if session and session.state == 'waiting' and session.wait_until > now
        and (fit == 'current' or session.allow_superseded ~= false) then
        return session
      end
    end
    if #ids < step then return nil end
    from = from + step
  end
end

local pool = load('pools', sandbox.pool)
local lineage = pool and load('lineages', lineage_of(pool))
local fit = lineage and not pool.deleting and fitness(sandbox, pool, lineage, facts_of(pool.template))
local session = fit and first_waiting(fit)

sandbox.ready_at, sandbox.expires_at, sandbox.step = now, now + A.max_age_s, 'ready'
wake()
if session then return assign(session, sandbox, 'assign', 'assign', 'worker', session.start_reason) end
move_sandbox(sandbox, 'ready', 'worker', 'provisioned')
return false
