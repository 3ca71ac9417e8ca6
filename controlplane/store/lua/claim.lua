-- A: the fields of ClaimRequest. Returns {outcome, session, place in the queue, sessions now}.
if A.proven_key then
  -- The caller was known from before; whether its key still holds is decided here, in the same step.
  local held = load('apikeys', A.proven_key)
  if not held or held.revoked_at then fail('denied', 'invalid_key', 'The API key was revoked.') end
end
local tenant = need('tenants', A.tenant, 'tenant')
local live = key('live', A.tenant)

local function answer(outcome, raw, session)
  return {outcome, raw or false, session and place_of(session) or -1, redis.call('ZCARD', live)}
end

local known = A.idempotency_key and redis.call('HGET', key('idempotency', A.tenant), A.idempotency_key)
local session, raw = load('sessions', known or A.session)
if session then
  -- Without a key: the same call again, after its first answer was lost on the way.
  if session.tenant ~= A.tenant or session.request_digest ~= A.request_digest then
    fail('conflict', 'idempotency_key_reused', 'This idempotency key was used for another request before.',
      'Use a new key for a new request, or repeat the request unchanged.')
  end
  return answer('repeat', raw, session)
end

local pool = load('pools', A.pool)
if not pool or pool.deleting then
  fail('not_found', 'pool_not_found', 'There is no pool ' .. A.pool .. '.')
end
if redis.call('ZCARD', live) >= tenant.max_sessions then return answer('over_quota') end

local sandbox, why = find_ready(pool, A)
if not sandbox and redis.call('ZCARD', key('waiters', A.pool)) >= A.max_waiting then return answer('no_capacity') end

session = {
  id = A.session, tenant = A.tenant, pool = A.pool, state = 'new', ttl_s = A.ttl_s, api_key = A.api_key,
  idempotency_key = A.idempotency_key, request_digest = A.request_digest, labels = A.labels, env = A.env,
  created_at = now, wait_until = now + A.wait_s, idle_timeout_s = A.idle_timeout_s, bind_failures = 0,
  -- Not part of the model: what claim_next must know if the bind fails.
  min_remaining_s = A.min_remaining_s, allow_superseded = A.allow_superseded,
}
if A.idempotency_key then
  redis.call('HSET', key('idempotency', A.tenant), A.idempotency_key, A.session)
end
redis.call('HSET', key('recency'), A.pool, string.format('%.4f', now))
if sandbox then
  -- The scheduler is woken once this sandbox is bound: a refill that starts now takes the processor from the bind.
  session.start, session.start_reason = 'warm', 'ready_in_pool'
  return answer('claimed', assign(session, sandbox, 'claim', 'claim', A.api_key, 'ready_in_pool'), session)
end
wake()
session.start, session.start_reason = 'cold', A.cold_reason or why
enqueue(session, false)
return answer('waiting', move_session(session, 'wait', A.api_key, session.start_reason, {start = 'cold'}), session)
