-- A: id, state, error, error_code, retry_after_s. ARGV[2]: the build without created_at, heartbeat_at, ended_at.
-- ARGV[3]: the version without created_at, superseded_at, or ''.
local known = need('builds', A.id, 'build')
if not BUILD[known.state .. ' fail'] then
  if known.state == A.state then return 0 end
  fail('conflict', 'build_ended', 'Build ' .. A.id .. ' has ended: ' .. known.state .. '.')
end
next_state(BUILD, known.state, A.state == 'succeeded' and 'succeed' or 'fail', 'Build ' .. A.id)
redis.call('HSET', key('builds'), A.id,
  stamp(ARGV[2], {created_at = known.created_at, heartbeat_at = now, ended_at = now}))
emit('build.' .. A.state, A.id, known.tenant, 'worker', A.error or '', {lineage = known.lineage})
wake()

-- The template may have been deleted meanwhile: then nothing wants the version, and it is collectable at once.
local lineage = load('lineages', known.lineage)

local function current_elsewhere(id)
  for _, raw in ipairs(redis.call('HVALS', key('lineages'))) do
    local other = decode(raw)
    if other.key ~= known.lineage and other.current == id then return true end
  end
  return false
end

if ARGV[3] ~= '' then
  local version = decode(ARGV[3])
  local before = load('versions', version.id)
  version.created_at = before and before.created_at or now
  if not lineage and not current_elsewhere(version.id) then version.superseded_at = now end
  save('versions', version.id, version)
  if lineage then
    local old = lineage.current ~= version.id and lineage.current and load('versions', lineage.current)
    -- Two refs of one template can resolve to the same inputs, so to one version.
    if old and not current_elsewhere(old.id) then
      old.superseded_at = now
      save('versions', old.id, old)
      emit('version.superseded', old.id, old.tenant, 'worker', '', {lineage = known.lineage})
    end
    lineage.current, lineage.current_revision = version.id, known.revision
    lineage.failures, lineage.provision_failures, lineage.next_attempt_at = 0, 0, 0
    lineage.last_error, lineage.last_error_code = nil, nil
    emit('version.published', version.id, version.tenant, 'worker', '', {lineage = known.lineage})
  end
elseif lineage then
  lineage.failures = lineage.failures + 1
  lineage.next_attempt_at = now + A.retry_after_s
  lineage.last_error, lineage.last_error_code = A.error, A.error_code
end
if lineage then
  if lineage.build == A.id then lineage.build = nil end
  save_lineage(lineage)
end
return 1
