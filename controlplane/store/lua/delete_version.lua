-- A: version. Missing: success.
local version = load('versions', A.version)
if not version then return 0 end
for _, raw in ipairs(redis.call('HVALS', key('lineages'))) do
  local lineage = decode(raw)
  if lineage.current == A.version then
    fail('conflict', 'version_in_use', 'Version ' .. A.version .. ' is the current one of ' .. lineage.key .. '.')
  end
end
if redis.call('SCARD', key('version_sandboxes', A.version)) > 0 then
  fail('conflict', 'version_in_use', 'Version ' .. A.version .. ' still has sandboxes.')
end
redis.call('HDEL', key('versions'), A.version)
emit('version.collected', A.version, version.tenant, 'scheduler', '', {lineage = version.lineage})
return 1
