"""Text: GPT-2 with LoRA on the E2E NLG data, and the five scores of its official scorer.

    rows = e2e.load("data", "train").rows
    model = gpt2.with_lora(gpt2.load_model("gpt2"))
    tuning.train(model, tokenizer, rows, tuning.Schedule(), mark=tuning.TextMarking(key))
    generation.assess(model, tokenizer, e2e.load("data", "test").rows).scores

The scores and the data need neither torch nor transformers (extra: text).
"""
