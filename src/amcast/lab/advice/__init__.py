"""An adviser: which protocol, which placement and which leaders suit a service, judged by simulation."""
