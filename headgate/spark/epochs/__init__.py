"""The epochs of a job: what the job has been granted, the plan of each epoch, its lanes and their hosts, and its durable record."""
