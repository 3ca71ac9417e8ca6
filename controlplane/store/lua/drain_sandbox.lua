-- A: sandbox, reason, actor, fence, unclaimed_only. Returns 1 if it drains now.
if A.fence then check_fence(A.fence) end
local sandbox = load('sandboxes', A.sandbox)
if not sandbox then return 0 end
if sandbox.state == 'draining' then return 1 end
if sandbox.session then
  if A.unclaimed_only then return 0 end
  local session = load('sessions', sandbox.session)
  if session and session.state ~= 'ended' then
    end_session(session, 'sandbox_lost', A.reason, A.actor)
    return 1
  end
  move_sandbox(sandbox, 'release', A.actor, A.reason)
else
  move_sandbox(sandbox, 'drain', A.actor, A.reason)
end
wake()
return 1
