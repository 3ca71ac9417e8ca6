-- A: has_session. ARGV[2]: the sandbox, ARGV[3]: its session. Returns 1 if recorded, 0 if it was known.
local sandbox = decode(ARGV[2])
if load('sandboxes', sandbox.id) then return 0 end

local holder
if A.has_session then
  local session = decode(ARGV[3])
  local known = load('sessions', session.id)
  if not known then
    session.sandbox, session.door, session.version = sandbox.id, sandbox.door, sandbox.version
    if session.state ~= 'binding' then
      session.state = 'attached'
      session.attached_at = session.attached_at or now
      session.last_activity_at = now
      session.expires_at = session.expires_at or now + session.ttl_s
    end
    session.claimed_at = session.claimed_at or now
    if session.created_at == 0 then session.created_at = now end
    session.wait_until = session.wait_until or now
    if session.idempotency_key then
      redis.call('HSETNX', key('idempotency', session.tenant), session.idempotency_key, session.id)
    end
    put_session(session, true)
    emit('session.' .. session.state, session.id, session.tenant, 'store', 'adopted', {sandbox = sandbox.id})
    holder = session
  elseif known.state ~= 'ended' and known.state ~= 'waiting' and known.sandbox == sandbox.id then
    holder = known
  end
end

local pool = load('pools', sandbox.pool)
if holder then
  sandbox.state, sandbox.session = 'claimed', holder.id
else
  sandbox.session = nil
  -- Only a ready one of this very pool is worth keeping; anything else is destroyed, never handed out.
  if sandbox.state ~= 'ready' or not pool or pool.uid ~= sandbox.pool_uid then sandbox.state = 'draining' end
end
sandbox.state_since = now
if sandbox.created_at == 0 then sandbox.created_at = now end
if sandbox.state == 'ready' then sandbox.ready_at = sandbox.ready_at or now end
if sandbox.state == 'draining' then sandbox.deadline_at = now + CONFIG.drain_limit_s end
put_sandbox(sandbox, true)
emit('sandbox.' .. sandbox.state, sandbox.id, sandbox.tenant, 'store', 'adopted', {pool = sandbox.pool})
wake()
return 1
