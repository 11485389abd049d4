"""What is started: one file for each engine and router. ``registry.py`` lists them, ``engine.py``
documents the record that each file makes, docs/guides/your-own-engine.md says how to add one.

command.py, container.py       from settings to the process of a rank
problems.py, extra_args.py     what of the settings an engine refuses
command_lines.py, recorded/    the flags of each release, as its own parser has them
drafts.py, model_rules.py      speculative decoding, and what an engine asks of models
log_words.py, networks.py      what its log says
vllm_check.py, vllm_judge.py   vLLM's own opinion of a plan
"""
