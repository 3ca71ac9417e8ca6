-- A: session, bad, reason. Returns {outcome, session, place in the queue, sessions now}.
local session, raw = need('sessions', A.session, 'session')
if session.state == 'ended' then
  fail('conflict', 'session_ended', 'Session ' .. A.session .. ' has ended.')
end
local live = key('live', session.tenant)

local function answer(outcome, text)
  return {outcome, text, place_of(session), redis.call('ZCARD', live)}
end

local repeated = session.state == 'binding' and session.sandbox ~= A.bad
if repeated then return answer('claimed', raw) end
if session.state ~= 'waiting' then next_state(SESSION, session.state, 'rebind', 'Session ' .. A.session) end

local waiting = session.state == 'waiting'
local bad = load('sandboxes', A.bad)
if not waiting and bad and bad.session == session.id then drop_sandbox(bad, 'bind', A.reason) end

local pool = load('pools', session.pool)
local sandbox = pool and not pool.deleting and find_ready(pool, {
  min_remaining_s = session.min_remaining_s or 0, allow_superseded = session.allow_superseded ~= false})
if sandbox then
  if not waiting then session.bind_failures = session.bind_failures + 1 end
  return answer('claimed', assign(session, sandbox, waiting and 'assign' or 'rebind', 'claim', 'bind', A.reason))
end
if waiting then return answer('waiting', raw) end
if not pool or pool.deleting then
  return answer('waiting', end_session(session, 'pool_deleted', 'The pool was deleted while the session was bound.', 'bind'))
end
wake()
return answer('waiting', requeue(session, 'bind', A.reason))
