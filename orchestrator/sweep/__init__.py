"""Runs a sweep. To follow one, read in this order:

1. ``sweep``: decides which deployment starts next, and when the sweep is over. It uses

   - ``roster`` (where each deployment is: queued, launched, idle or dropped),
   - ``left_to_measure`` with ``earlier_attempts`` (what earlier sweeps left), ``deployment_work``
     (what is left of one deployment) and ``tries`` (how often it failed),
   - ``launch_queue`` with ``competition`` (which deployments race, and which are started),
   - ``admission`` (what fits where, and which nodes to ask for), ``resource_request`` (what a
     launch takes), ``node_shortage`` (what no node can hold) and ``breakers`` (which nodes rest,
     and when the sweep pauses).

2. ``launch_lifecycle``: one launch from placement to release. ``launch_state`` has its states and
   what leads from one to the next; ``engine_start`` places, starts and stops its engines;
   ``host_leases`` waits in line for their hosts; ``replicas`` are those engines while they are
   loaded, and ``launch_dialects`` says how their APIs are asked; ``launch_notes`` is what is found
   out about the launch meanwhile, and stores it; ``outlook`` lists the questions that a launch
   asks about the other launches, and ``sweep_outlook`` answers them.
3. ``measure``: one attempt at a load point; ``early_end`` says when a probe knows enough.
4. ``commit``: what is stored of attempts and launches. ``forming_answer`` says after each
   attempt which deployment leads.

All of these share a ``context`` (plan, cluster, store, settings) with its ``state`` (launches,
nodes, time and money in use), ``budget`` and ``news``; ``node_events`` tells when nodes come and go.

Some modules work without a sweep: ``endpoint`` and ``find_capacity`` measure a server that is
already up, and ``detect_dialect`` finds out how to talk to it. ``examine`` and ``doctor`` check a
cluster before a sweep.
"""
