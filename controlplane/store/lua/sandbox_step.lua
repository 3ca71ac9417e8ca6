-- A: sandbox, step, door, deadline_s. Returns the sandbox.
local sandbox = need('sandboxes', A.sandbox, 'sandbox')
if sandbox.state ~= 'building' and sandbox.state ~= 'draining' then
  fail('conflict', 'illegal_transition', 'Sandbox ' .. A.sandbox .. ' is ' .. sandbox.state
    .. '; it is neither being built nor drained.')
end
local moved = sandbox.step ~= A.step
sandbox.step, sandbox.door = A.step, A.door or sandbox.door
sandbox.deadline_at = now + A.deadline_s
if moved then
  emit('sandbox.step', sandbox.id, sandbox.tenant, 'worker', A.step, {pool = sandbox.pool, state = sandbox.state})
end
return put_sandbox(sandbox)
