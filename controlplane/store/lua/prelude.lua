-- In front of every script, after the generated head (CONFIG and the lifecycle tables SANDBOX, SESSION, BUILD).
-- KEYS[1]: prefix of the deployment, with a hash tag, so that all its keys live in one slot.
-- ARGV[1]: named arguments as one JSON object, here as A. Further ARGV: records as JSON text.
-- A script is not rolled back: each checks everything that can fail before it writes.

local PREFIX = KEYS[1]

local function key(name, of)
  if of then return PREFIX .. name .. ':' .. of end
  return PREFIX .. name
end

local function fail(kind, code, message, hint)
  error({err = 'WARMPOOL ' .. cjson.encode({kind = kind, code = code, message = message, hint = hint or ''})})
end

do
  local found = redis.call('GET', key('schema'))
  if not found then fail('schema', 'schema_missing', 'The store is empty.') end
  if tonumber(found) ~= CONFIG.schema then
    fail('permanent', 'schema_changed',
      'The stored state has schema ' .. found .. ', this program works with ' .. CONFIG.schema .. '.',
      'Restart this process with the version that migrated the state.')
  end
end

local TIME = redis.call('TIME')
-- cjson writes 14 digits: ten of seconds and four behind the point.
local now = tonumber(TIME[1]) + math.floor(tonumber(TIME[2]) / 100) / 10000

-- Absent and null are the same in a record, so nulls are dropped and absent fields take the model's default.
-- Records written here have none: looking for the word first costs a tenth of looking at every field.
local function decode(raw)
  local record, null = cjson.decode(raw), cjson.null
  if string.find(raw, 'null', 1, true) then
    for field, value in pairs(record) do
      if value == null then record[field] = nil end
    end
  end
  return record
end

local A = decode(ARGV[1])

local function load(kind, id)
  local raw = redis.call('HGET', key(kind), id)
  if raw then return decode(raw), raw end
end

local function need(kind, id, what)
  local record, raw = load(kind, id)
  if not record then
    fail('not_found', what .. '_not_found', 'There is no ' .. what .. ' ' .. id .. '.')
  end
  return record, raw
end

local function save(kind, id, record)
  local raw = cjson.encode(record)
  redis.call('HSET', key(kind), id, raw)
  return raw
end

-- A record that holds lists is never encoded here (cjson can't tell an empty list from an empty map):
-- the caller encodes it without the fields that are set here, and they are appended to the text.
local function stamp(raw, fields)
  local tail = cjson.encode(fields)
  if tail == '{}' then return raw end
  return string.sub(raw, 1, -2) .. ',' .. string.sub(tail, 2)
end

local function next_state(tables, state, event, what)
  local to = tables[state .. ' ' .. event]
  if not to then
    fail('conflict', 'illegal_transition', what .. ' is ' .. state .. "; it can't " .. event .. ' from there.')
  end
  return to
end

local function emit(kind, subject, tenant, actor, reason, data)
  return redis.call('XADD', key('events'), 'MAXLEN', '~', CONFIG.max_events, '*',
    'kind', kind, 'subject', subject, 'tenant', tenant or '', 'actor', actor or '', 'reason', reason or '',
    'at', string.format('%.4f', now), 'data', cjson.encode(data or {}))
end

-- Wake-ups coalesce: one element says it all.
local function wake()
  if redis.call('LLEN', key('wake')) == 0 then redis.call('RPUSH', key('wake'), '1') end
end

local function check_fence(fence)
  local current = tonumber(redis.call('GET', key('fence')) or '0')
  if current ~= fence then
    fail('conflict', 'fenced', 'The leader with token ' .. fence .. ' was replaced; the present token is '
      .. current .. '.', 'Stop acting on the old plan; lead again first.')
  end
end

-- Names that a tenant makes without end would fill the store, and every plan reads them all. Sets, not counts, since
-- adding and removing twice is then harmless. Call refuse_more for what is new, and index once it is stored.
local function refuse_more(what, tenant, most)
  if redis.call('SCARD', key('tenant_' .. what, tenant)) >= most then
    fail('conflict', 'too_many_' .. what, 'Tenant ' .. tenant .. ' has ' .. most .. ' ' .. what .. ' already.',
      'Delete some first; the operator can raise the limit.')
  end
end

local function index(what, tenant, name) redis.call('SADD', key('tenant_' .. what, tenant), name) end

local function unindex(what, tenant, name) redis.call('SREM', key('tenant_' .. what, tenant), name) end

local function save_lineage(lineage)
  redis.call('SADD', key('template_lineages', lineage.template), lineage.key)
  return save('lineages', lineage.key, lineage)
end

-- The same form as ids.lineage_key.
local function lineage_of(pool)
  return pool.template .. '@' .. (pool.ref or '')
end

-- What a claim needs to know of a template, without reading the whole of it.
local function facts_of(template)
  return load('template_facts', template) or {revision = 0, strict = false}
end
