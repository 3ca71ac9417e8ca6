-- A: sandbox, reason, actor. Returns the sandbox; one that has failed keeps its first reason.
local sandbox, raw = load('sandboxes', A.sandbox)
if not sandbox then return false end
if sandbox.state == 'failed' then return raw end
local failed, session = drop_sandbox(sandbox, A.actor, A.reason)
if session and session.sandbox == A.sandbox then
  if session.state == 'binding' then requeue(session, A.actor, A.reason)
  elseif session.state ~= 'ended' then end_session(session, 'sandbox_lost', A.reason, A.actor) end
end
return failed
