-- A: pool. Returns the number waiting, then every sandbox of the pool.
local found = {redis.call('ZCARD', key('waiters', A.pool))}
local ids = redis.call('SMEMBERS', key('pool_sandboxes', A.pool))
for from = 1, #ids, 1000 do
  local raws = redis.call('HMGET', key('sandboxes'), unpack(ids, from, math.min(from + 999, #ids)))
  for _, raw in ipairs(raws) do
    if raw then found[#found + 1] = raw end
  end
end
return found
