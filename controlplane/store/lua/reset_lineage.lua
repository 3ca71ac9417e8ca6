-- A: lineage, template, ref, rebuild. A lineage that was never built is made, so that it is built now.
local lineage = load('lineages', A.lineage)
if not lineage then
  need('templates', A.template, 'template')
  if redis.call('SCARD', key('template_lineages', A.template)) >= CONFIG.max_lineages_per_template then
    fail('conflict', 'too_many_refs', 'Template ' .. A.template .. ' has builds of '
      .. CONFIG.max_lineages_per_template .. ' refs already.', 'Those that no pool uses are forgotten after a while.')
  end
  lineage = {key = A.lineage, template = A.template, ref = A.ref, current_revision = 0}
end
lineage.failures, lineage.provision_failures, lineage.next_attempt_at = 0, 0, 0
lineage.last_error, lineage.last_error_code = nil, nil
if A.rebuild then lineage.current_revision = 0 end
emit('lineage.reset', A.lineage, string.match(A.lineage, '^[^/]*'), 'api', A.rebuild and 'rebuild' or 'retry')
wake()
save_lineage(lineage)
return 1
