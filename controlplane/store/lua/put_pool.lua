-- A: uid (for a new one). ARGV[2]: the pool. Returns the pool as stored.
local pool = decode(ARGV[2])
local known, raw = load('pools', pool.key)
if known and known.deleting then
  fail('conflict', 'pool_deleting', 'Pool ' .. pool.key .. ' is being deleted.', 'Try again when it is gone.')
end
if redis.call('HEXISTS', key('templates'), pool.template) == 0 then
  fail('not_found', 'template_not_found', 'There is no template ' .. pool.template .. '.')
end
if not known then refuse_more('pools', pool.tenant, CONFIG.max_pools_per_tenant) end
index('pools', pool.tenant, pool.key)
-- A pool counts as used when it is asked for, so that a one-off is not removed before its first claim.
if not known or pool.adhoc then redis.call('HSET', key('recency'), pool.key, string.format('%.4f', now)) end
-- A one-off attach must not resize a pool that somebody declared.
if known and pool.adhoc then return raw end
pool.deleting, pool.updated_at = false, now
if known then
  pool.uid, pool.created_at, pool.pinned_ready = known.uid, known.created_at, known.pinned_ready
  redis.call('SREM', key('template_pools', known.template), pool.key)
else
  pool.uid, pool.created_at = A.uid, now
end
redis.call('SADD', key('template_pools', pool.template), pool.key)
emit(known and 'pool.updated' or 'pool.created', pool.key, pool.tenant, 'api', '', {template = pool.template})
wake()
return save('pools', pool.key, pool)
