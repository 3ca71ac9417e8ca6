"""Templates: checking and storing what tenants declare, and building versions of it.

Belongs here: validation, sharing, the steps of a build and their logs. Does not belong here: when to build
(planning), how an image is made (runtime). The service is called by the API, the builder by jobs.
"""

from controlplane.templates.builder import Builder, BuildTimes
from controlplane.templates.service import TemplateService
from controlplane.templates.steps import BuildSurroundings

__all__ = ["BuildSurroundings", "BuildTimes", "Builder", "TemplateService"]
