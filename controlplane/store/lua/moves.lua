-- Changes of sandboxes and sessions that several scripts share. put_* are the only writers of these records
-- and keep every index in step with them.

local function put_sandbox(sandbox, is_new)
  local ready, member = key('ready', sandbox.pool), sandbox.version .. '|' .. sandbox.id
  if sandbox.state == 'ready' then
    redis.call('ZADD', ready, sandbox.ready_at, member)
  else
    redis.call('ZREM', ready, member)
  end
  if sandbox.state == 'gone' then
    redis.call('SREM', key('pool_sandboxes', sandbox.pool), sandbox.id)
    redis.call('SREM', key('version_sandboxes', sandbox.version), sandbox.id)
    redis.call('HDEL', key('sandboxes'), sandbox.id)
    return nil
  end
  if is_new then
    redis.call('SADD', key('pool_sandboxes', sandbox.pool), sandbox.id)
    redis.call('SADD', key('version_sandboxes', sandbox.version), sandbox.id)
  end
  return save('sandboxes', sandbox.id, sandbox)
end

local function move_sandbox(sandbox, event, actor, reason)
  sandbox.state = next_state(SANDBOX, sandbox.state, event, 'Sandbox ' .. sandbox.id)
  sandbox.state_since = now
  sandbox.reason = reason
  sandbox.deadline_at = nil
  if sandbox.state == 'draining' then
    sandbox.deadline_at = now + CONFIG.drain_limit_s
    sandbox.step = 'queued'
  end
  local session = sandbox.session
  if sandbox.state ~= 'claimed' and sandbox.state ~= 'paused' then sandbox.session = nil end
  local raw = put_sandbox(sandbox)
  emit('sandbox.' .. sandbox.state, sandbox.id, sandbox.tenant, actor, reason,
    {pool = sandbox.pool, version = sandbox.version, session = session})
  return raw
end

local function session_deadline(session)
  if session.state == 'waiting' then return session.wait_until end
  if session.state == 'binding' then return session.claimed_at + CONFIG.bind_limit_s end
  return session.expires_at
end

local function put_session(session, is_new)
  local id, tenant = session.id, session.tenant
  if session.state == 'ended' then
    redis.call('ZREM', key('deadlines'), id)
    redis.call('ZREM', key('idle'), id)
    redis.call('ZREM', key('live'), id)
    redis.call('ZREM', key('live', tenant), id)
    redis.call('ZADD', key('ended'), session.ended_at, id)
    redis.call('ZADD', key('ended', tenant), session.ended_at, id)
  else
    redis.call('ZADD', key('deadlines'), session_deadline(session), id)
    if is_new then
      redis.call('ZADD', key('live'), session.created_at, id)
      redis.call('ZADD', key('live', tenant), session.created_at, id)
    end
    if session.state == 'attached' and session.idle_timeout_s then
      redis.call('ZADD', key('idle'), session.last_activity_at + session.idle_timeout_s, id)
    else
      redis.call('ZREM', key('idle'), id)
    end
  end
  return save('sessions', id, session)
end

local function move_session(session, event, actor, reason, data)
  local is_new = session.state == 'new'
  session.state = next_state(SESSION, session.state, event, 'Session ' .. session.id)
  local raw = put_session(session, is_new)
  data = data or {}
  data.pool, data.sandbox = session.pool, session.sandbox
  emit('session.' .. session.state, session.id, session.tenant, actor, reason, data)
  if session.state ~= 'waiting' and session.state ~= 'binding' then
    redis.call('PUBLISH', key('sessions_moved'), session.id)
  end
  return raw
end

local function count_waiting(pool)
  local waiting = redis.call('ZCARD', key('waiters', pool))
  if waiting == 0 then redis.call('HDEL', key('waiting'), pool)
  else redis.call('HSET', key('waiting'), pool, waiting) end
end

-- Sequence numbers below zero are the front of every queue, above it the back.
local function enqueue(session, front)
  local place = front and redis.call('DECR', key('queue_front')) or redis.call('INCR', key('queue_back'))
  redis.call('ZADD', key('waiters', session.pool), place, session.id)
  count_waiting(session.pool)
end

local function leave_queue(session)
  redis.call('ZREM', key('waiters', session.pool), session.id)
  count_waiting(session.pool)
end

local function place_of(session)
  if session.state ~= 'waiting' then return -1 end
  return redis.call('ZRANK', key('waiters', session.pool), session.id) or -1
end

local function end_session(session, reason, detail, actor)
  next_state(SESSION, session.state, 'end', 'Session ' .. session.id)
  if session.state == 'waiting' then leave_queue(session) end
  local sandbox = session.sandbox and load('sandboxes', session.sandbox)
  if sandbox and sandbox.session == session.id and SANDBOX[sandbox.state .. ' release'] then
    move_sandbox(sandbox, 'release', actor, 'session_ended')
  end
  session.ended_at, session.end_reason, session.end_detail = now, reason, detail
  session.env, session.door = {}, nil
  wake()
  return move_session(session, 'end', actor, reason, {detail = detail})
end

local function assign(session, sandbox, session_event, sandbox_event, actor, reason)
  if session.state == 'waiting' then leave_queue(session) end
  session.sandbox, session.door, session.version = sandbox.id, sandbox.door, sandbox.version
  session.claimed_at = now
  sandbox.session = session.id
  move_sandbox(sandbox, sandbox_event, actor, 'claimed')
  return move_session(session, session_event, actor, reason, {start = session.start})
end

local function requeue(session, actor, reason)
  session.sandbox, session.door, session.version, session.claimed_at = nil, nil, nil, nil
  session.bind_failures = session.bind_failures + 1
  session.start, session.start_reason = 'cold', 'bind_failed'
  enqueue(session, true)
  return move_session(session, 'wait', actor, reason)
end

local function drop_sandbox(sandbox, actor, reason)
  next_state(SANDBOX, sandbox.state, 'fail', 'Sandbox ' .. sandbox.id)
  local session = sandbox.session and load('sessions', sandbox.session)
  local raw = move_sandbox(sandbox, 'fail', actor, reason)
  wake()
  return raw, session
end

local function same_size(sandbox, resources)
  local disk = resources.disk_bytes
  if disk == cjson.null then disk = nil end
  return sandbox.memory_bytes == resources.memory_bytes and sandbox.cpu_cores == resources.cpu_cores
    and sandbox.pids == resources.pids and sandbox.disk_bytes == disk
end

-- 'current', 'old' (only for those who accept it), or nil: not for sessions of this pool.
local function fitness(sandbox, pool, lineage, facts)
  if sandbox.lineage ~= lineage.key then return nil end
  local fresh = not facts.strict or lineage.current_revision >= facts.revision
  if sandbox.version == lineage.current and fresh and same_size(sandbox, pool.resources) then return 'current' end
  if facts.strict then return nil end
  return 'old'
end

-- The newest ready sandbox that fits, or nil and why there is none. wants: min_remaining_s, allow_superseded.
local function find_ready(pool, wants)
  local lineage = load('lineages', lineage_of(pool))
  if not lineage or not lineage.current then return nil, 'building' end
  local facts, ready = facts_of(pool.template), key('ready', pool.key)
  local found, second, passed_over, broken = nil, nil, false, {}
  -- Nearly always the first one fits.
  local from, step = 0, 4
  repeat
    local members = redis.call('ZREVRANGE', ready, from, from + step - 1)
    for _, member in ipairs(members) do
      local sandbox = load('sandboxes', string.match(member, '|([^|]*)$'))
      if not sandbox or sandbox.state ~= 'ready' then
        broken[#broken + 1] = member
      elseif not sandbox.expires_at or sandbox.expires_at - now >= wants.min_remaining_s then
        local fit = fitness(sandbox, pool, lineage, facts)
        if fit == 'current' then found = sandbox break end
        if fit == 'old' and wants.allow_superseded then second = second or sandbox
        else passed_over = true end
      end
    end
    local last_page = #members < step
    from, step = from + step, 32
  until found or last_page
  for _, member in ipairs(broken) do redis.call('ZREM', ready, member) end
  if found or second then return found or second end
  return nil, passed_over and 'version_changed' or 'pool_empty'
end
