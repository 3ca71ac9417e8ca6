-- A: holder, fence.
if redis.call('GET', key('leader')) ~= A.holder then return 0 end
if tonumber(redis.call('GET', key('fence')) or '0') ~= A.fence then return 0 end
redis.call('DEL', key('leader'))
emit('leader.resigned', A.holder, '', A.holder, '')
return 1
