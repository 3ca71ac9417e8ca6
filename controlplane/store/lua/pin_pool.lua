-- A: pool, ready. Returns the pool.
local pool = need('pools', A.pool, 'pool')
pool.pinned_ready, pool.updated_at = A.ready, now
emit('pool.pinned', pool.key, pool.tenant, 'api', '', {ready = A.ready and tostring(A.ready) or ''})
wake()
return save('pools', pool.key, pool)
