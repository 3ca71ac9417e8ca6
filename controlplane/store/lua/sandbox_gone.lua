-- A: sandbox.
local sandbox = load('sandboxes', A.sandbox)
if not sandbox then return 0 end
move_sandbox(sandbox, 'gone', 'worker', sandbox.reason)
wake()
return 1
