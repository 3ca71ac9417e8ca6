-- A: lineage. Forgets a ref that no pool names and nothing builds; its version becomes collectable.
-- Returns 1 if it is gone.
local lineage = load('lineages', A.lineage)
if not lineage then return 1 end
if not lineage.ref then return 0 end
local live = lineage.build and load('builds', lineage.build)
if live and BUILD[live.state .. ' fail'] then return 0 end
for _, name in ipairs(redis.call('SMEMBERS', key('template_pools', lineage.template))) do
  local pool = load('pools', name)
  if pool and lineage_of(pool) == A.lineage then return 0 end
end
redis.call('HDEL', key('lineages'), A.lineage)
redis.call('SREM', key('template_lineages', lineage.template), A.lineage)
local version = lineage.current and load('versions', lineage.current)
if version and not version.superseded_at then
  version.superseded_at = now
  save('versions', version.id, version)
end
emit('lineage.forgotten', A.lineage, string.match(A.lineage, '^[^/]*'), 'reaper', 'unused')
return 1
