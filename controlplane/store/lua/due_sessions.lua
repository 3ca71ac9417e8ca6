-- A: limit. Ends what is due, forgets what ended long ago; returns the sessions ended here.
local ended = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('deadlines'), '-inf', now, 'LIMIT', 0, A.limit)) do
  local session = load('sessions', id)
  if not session then
    redis.call('ZREM', key('deadlines'), id)
  -- The record decides, not the index: a keep-alive may have come first.
  elseif session.state ~= 'ended' and session_deadline(session) <= now then
    local reason, detail = 'expired', 'The lease ended without a keep-alive.'
    if session.state == 'waiting' then
      reason, detail = 'wait_timeout', 'No sandbox became ready within the waiting time.'
    elseif session.state == 'binding' then
      reason, detail = 'wait_timeout', 'The sandbox was not bound in time.'
    end
    ended[#ended + 1] = end_session(session, reason, detail, 'store')
  else
    put_session(session)
  end
end

local function collect(id)
  local session = load('sessions', id)
  redis.call('ZREM', key('ended'), id)
  if not session then return end
  redis.call('ZREM', key('ended', session.tenant), id)
  redis.call('HDEL', key('sessions'), id)
  local keys = key('idempotency', session.tenant)
  if session.idempotency_key and redis.call('HGET', keys, session.idempotency_key) == id then
    redis.call('HDEL', keys, session.idempotency_key)
  end
end

local old = now - CONFIG.ended_session_keep_s
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('ended'), '-inf', old, 'LIMIT', 0, A.limit)) do collect(id) end
local surplus = math.min(redis.call('ZCARD', key('ended')) - CONFIG.max_ended_sessions, A.limit)
if surplus > 0 then
  for _, id in ipairs(redis.call('ZRANGE', key('ended'), 0, surplus - 1)) do collect(id) end
end
return ended
