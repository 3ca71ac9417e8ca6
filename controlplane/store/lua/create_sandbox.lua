-- A: count_limit, deadline_s, fence. ARGV[2]: the sandbox. Returns 1, or 0 if the pool can't take it.
check_fence(A.fence)
local sandbox = decode(ARGV[2])
local known = load('sandboxes', sandbox.id)
if known then return known.pool == sandbox.pool and 1 or 0 end
local pool = load('pools', sandbox.pool)
if not pool or pool.deleting or pool.uid ~= sandbox.pool_uid then return 0 end
local limit = math.min(A.count_limit, pool.max_total)
if redis.call('SCARD', key('pool_sandboxes', sandbox.pool)) >= limit then return 0 end
sandbox.state, sandbox.created_at, sandbox.state_since = 'building', now, now
sandbox.session, sandbox.ready_at, sandbox.expires_at = nil, nil, nil
if A.deadline_s then sandbox.deadline_at = now + A.deadline_s end
put_sandbox(sandbox, true)
emit('sandbox.building', sandbox.id, sandbox.tenant, 'scheduler', sandbox.reason,
  {pool = sandbox.pool, version = sandbox.version})
return 1
