-- A: session, reason, detail, actor. Returns the session; one that has ended keeps its first reason.
local session, raw = need('sessions', A.session, 'session')
if session.state == 'ended' then return raw end
return end_session(session, A.reason, A.detail, A.actor)
