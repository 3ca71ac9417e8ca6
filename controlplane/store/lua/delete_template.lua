-- A: key. Its versions become collectable, its lineages and builds are forgotten: one that still runs finds no record
-- to go on with, so that nothing of it can be published under a later template of the same name.
local template = load('templates', A.key)
if not template then return 0 end
local pools = redis.call('SMEMBERS', key('template_pools', A.key))
if #pools > 0 then
  fail('conflict', 'template_in_use', 'Template ' .. A.key .. ' is used by ' .. #pools .. ' pool(s), such as '
    .. pools[1] .. '.', 'Delete its pools first, and wait until they are gone.')
end
for _, name in ipairs(redis.call('SMEMBERS', key('template_lineages', A.key))) do
  redis.call('HDEL', key('lineages'), name)
end
redis.call('DEL', key('template_lineages', A.key))
for _, raw in ipairs(redis.call('HVALS', key('versions'))) do
  local version = decode(raw)
  if version.template == A.key and not version.superseded_at then
    version.superseded_at = now
    save('versions', version.id, version)
  end
end
for _, id in ipairs(redis.call('ZRANGE', key('builds_by_time', A.key), 0, -1)) do
  redis.call('HDEL', key('builds'), id)
  redis.call('ZREM', key('builds_by_time'), id)
end
redis.call('DEL', key('builds_by_time', A.key))
redis.call('HDEL', key('templates'), A.key)
unindex('templates', template.tenant, A.key)
redis.call('HDEL', key('template_facts'), A.key)
emit('template.deleted', A.key, template.tenant, 'api', '')
wake()
return 1
