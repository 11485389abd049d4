"""What runs beside an engine on its host: process, guard, ownership, reaper, leases, readiness,
failures.
"""
