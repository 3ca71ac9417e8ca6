-- A: pool, fence. Returns 1 when the pool is no more.
check_fence(A.fence)
local pool = load('pools', A.pool)
if not pool then return 1 end
if not pool.deleting and not pool.adhoc then return 0 end
if redis.call('SCARD', key('pool_sandboxes', A.pool)) > 0 then return 0 end
if redis.call('ZCARD', key('waiters', A.pool)) > 0 then return 0 end
redis.call('SREM', key('template_pools', pool.template), A.pool)
for _, name in ipairs({'pools', 'recency', 'decisions', 'waiting'}) do redis.call('HDEL', key(name), A.pool) end
redis.call('DEL', key('ready', A.pool))
unindex('pools', pool.tenant, A.pool)
emit('pool.removed', pool.key, pool.tenant, 'scheduler', '')
return 1
