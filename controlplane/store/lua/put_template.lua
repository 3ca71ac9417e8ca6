-- A: key, tenant, digest (of what a build reads), strict. ARGV[2]: the template without revision and times.
-- Returns the template as stored.
local facts = load('template_facts', A.key)
local known = facts and load('templates', A.key)
local revision, created_at = 1, now
if not known then refuse_more('templates', A.tenant, CONFIG.max_templates_per_tenant) end
index('templates', A.tenant, A.key)
if known then
  created_at = known.created_at
  revision = facts.digest == A.digest and facts.revision or facts.revision + 1
end
local raw = stamp(ARGV[2], {revision = revision, created_at = created_at, updated_at = now})
redis.call('HSET', key('templates'), A.key, raw)
save('template_facts', A.key, {revision = revision, strict = A.strict, digest = A.digest})
if known and revision ~= facts.revision then
  for _, name in ipairs(redis.call('SMEMBERS', key('template_lineages', A.key))) do
    local lineage = load('lineages', name)
    if lineage then
      lineage.failures, lineage.provision_failures, lineage.next_attempt_at = 0, 0, 0
      lineage.last_error, lineage.last_error_code = nil, nil
      save_lineage(lineage)
    end
  end
end
emit(known and 'template.updated' or 'template.created', A.key, A.tenant, 'api', '',
  {revision = tostring(revision)})
wake()
return raw
