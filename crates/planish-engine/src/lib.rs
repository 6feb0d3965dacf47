//! Models: files, tokenizer, chat template, one decoder, plan, generation, verification.
