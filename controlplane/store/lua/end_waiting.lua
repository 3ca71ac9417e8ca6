-- A: pool, reason, detail, actor. Ends every session waiting for the pool; returns them.
local ended = {}
for _, id in ipairs(redis.call('ZRANGE', key('waiters', A.pool), 0, -1)) do
  local session = load('sessions', id)
  if session and session.state == 'waiting' then
    ended[#ended + 1] = end_session(session, A.reason, A.detail, A.actor)
  end
end
return ended
