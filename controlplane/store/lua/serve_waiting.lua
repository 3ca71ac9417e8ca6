-- A: pool, limit. Gives ready sandboxes to waiting sessions, first come first served; returns those sessions.
local pool, served = load('pools', A.pool), {}
if not pool or pool.deleting then return served end
for _, id in ipairs(redis.call('ZRANGE', key('waiters', A.pool), 0, A.limit - 1)) do
  local session = load('sessions', id)
  if session and session.state == 'waiting' and session.wait_until > now then
    local sandbox = find_ready(pool, {
      min_remaining_s = session.min_remaining_s or 0, allow_superseded = session.allow_superseded ~= false})
    if sandbox then
      served[#served + 1] = assign(session, sandbox, 'assign', 'claim', 'store', session.start_reason)
    end
  end
end
if #served > 0 then wake() end
return served
