-- A: session, sandbox. Returns the session.
local session, raw = need('sessions', A.session, 'session')
if session.state == 'ended' then
  fail('conflict', 'session_ended', 'Session ' .. A.session .. ' ended while it was bound.')
end
if session.sandbox and session.sandbox ~= A.sandbox then
  fail('conflict', 'sandbox_changed', 'Session ' .. A.session .. ' holds another sandbox by now.')
end
if session.state == 'attached' then return raw end
next_state(SESSION, session.state, 'bound', 'Session ' .. A.session)
session.attached_at, session.last_activity_at, session.expires_at = now, now, now + session.ttl_s
session.env = {}
wake()
return move_session(session, 'bound', session.api_key, session.start_reason, {start = session.start})
