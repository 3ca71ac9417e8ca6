-- A: holder, ttl_ms. Returns the fence, or 0 while another leads.
local holder = redis.call('GET', key('leader'))
if holder == A.holder then
  redis.call('PEXPIRE', key('leader'), A.ttl_ms)
  return tonumber(redis.call('GET', key('fence')))
end
if holder then return 0 end
-- Tokens begin at the time in ms, so that they rise even over a loss of all state.
redis.call('SET', key('fence'), math.floor(now * 1000), 'NX')
local fence = redis.call('INCR', key('fence'))
redis.call('SET', key('leader'), A.holder, 'PX', A.ttl_ms)
emit('leader.elected', A.holder, '', A.holder, '', {fence = tostring(fence)})
return fence
