-- A: session. Activity is too frequent to be an event of its own.
local session = load('sessions', A.session)
if not session or session.state == 'ended' then return 0 end
session.last_activity_at = now
put_session(session)
return 1
