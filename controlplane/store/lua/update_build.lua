-- A: id, state. ARGV[2]: the build without created_at, heartbeat_at.
local known = need('builds', A.id, 'build')
if not BUILD[known.state .. ' fail'] then
  fail('conflict', 'build_ended', 'Build ' .. A.id .. ' has ended: ' .. known.state .. '.')
end
if A.state ~= known.state or A.state == 'running' then
  local to = next_state(BUILD, known.state, 'start', 'Build ' .. A.id)
  if to ~= A.state then
    fail('conflict', 'illegal_transition', 'Build ' .. A.id .. ' can only be finished by finish_build.')
  end
end
redis.call('HSET', key('builds'), A.id, stamp(ARGV[2], {created_at = known.created_at, heartbeat_at = now}))
if A.state ~= known.state then
  emit('build.' .. A.state, A.id, known.tenant, 'worker', '', {lineage = known.lineage})
end
return 1
