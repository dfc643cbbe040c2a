"""Hugging Face's pipelines on device=0: text generation, classification, features, with a tokenizer made here."""

import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TextIteratorStreamer,
    pipeline,
)

raw = Tokenizer(models.WordLevel(unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
raw.train_from_iterator(
    ["a small model says hello to the world"], trainers.WordLevelTrainer(special_tokens=["[UNK]", "[PAD]"])
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]")
folder = tempfile.mkdtemp()
torch.manual_seed(0)
GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
    )
).save_pretrained(folder)
tokenizer.save_pretrained(folder)

generator = pipeline("text-generation", model=folder, device=0)
print(generator.device)
print(generator("a small", max_new_tokens=5, do_sample=False)[0]["generated_text"])
print(len(generator(["a small", "hello"], max_new_tokens=4, do_sample=True, num_return_sequences=2, batch_size=2)))
half = pipeline("text-generation", model=folder, device="cuda", torch_dtype=torch.bfloat16)
print(half("hello", max_new_tokens=3)[0]["generated_text"])
mapped = AutoModelForCausalLM.from_pretrained(folder, device_map="cuda", torch_dtype="auto")
inputs = AutoTokenizer.from_pretrained(folder)("the world", return_tensors="pt").to(mapped.device)
inputs.pop("token_type_ids", None)
print(mapped.generate(**inputs, max_new_tokens=4, num_beams=2, pad_token_id=1).shape)
auto = AutoModelForCausalLM.from_pretrained(folder, device_map="auto")
print(auto.device, next(auto.parameters()).is_cuda)
config = BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
classifier = pipeline(
    "text-classification", model=BertForSequenceClassification(config), tokenizer=tokenizer, device="cuda:0"
)
print(classifier(["a small world", "hello"], batch_size=2)[0]["label"])
features = pipeline("feature-extraction", model=BertModel(config), tokenizer=tokenizer, device=torch.device("cuda"))
print(len(features("hello to the world")[0]))
