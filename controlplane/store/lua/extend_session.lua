-- A: session, ttl_s. Returns the session. Before attach only the length of the lease changes: it starts then.
local session = need('sessions', A.session, 'session')
if session.state == 'ended' or (session.expires_at and session.expires_at <= now) then
  fail('conflict', 'session_ended', 'Session ' .. A.session .. ' has ended.', 'Attach a new session.')
end
if session.expires_at then session.expires_at = now + A.ttl_s else session.ttl_s = A.ttl_s end
emit('session.extended', session.id, session.tenant, session.api_key, '', {ttl_s = tostring(A.ttl_s)})
return put_session(session)
