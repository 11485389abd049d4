"""A whole sweep in virtual time: the plan's deployments are simulated with the emulator's step
model and committed as a sweep commits what it measured. Every row says that it was simulated.
``predict`` in contrast only forecasts what deployments will hold, to order the queue.

| file | what it does |
|---|---|
| ``refusals.py`` | what cannot be simulated, found before anything starts |
| ``sweep.py`` | launch by launch, with budgets, from where an earlier simulation ended |
| ``queue.py`` | which deployment is next, with races and shortlists |
| ``so_far.py`` | what the sweep has come to, which its launches read and add to |
| ``launch.py`` | one launch, measurement after measurement |
| ``stored.py`` | what an earlier simulation left, from which the next one goes on |
| ``point.py`` | one attempt at a measurement, from schedule to verdict |
| ``client.py`` | the load client in virtual time |
| ``fleet.py`` | the engines of a deployment in virtual time |
| ``step_times.py`` | when each token came |
| ``contents.py`` | which prompts share tokens, for prefix caches |
| ``reuse.py`` | how much of its prompts a cache of unlimited size would hold |
| ``rows.py`` | rows of ``requests`` |
| ``virtual_clock.py`` | time and ids, the same in every simulation of a plan |
"""
