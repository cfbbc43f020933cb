module;
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.data;
import :section_keys;

namespace tessera::runs {

/// Where data come from and how they become tokens.
std::vector<Key> source_keys() {
  using D = DataConfig;
  constexpr auto s = &RunSpec::data;
  return {
      {.path = "data.text",
       .slot = field<s, &D::text>,
       .doc = "Text files, folders (all files below, by path; links are followed; hidden and empty "
              "files and what is not a file are left out, and the table before the run names them) "
              "or shell patterns such as `/usr/share/perl/5*/pod`. They are read one after the "
              "other; a "
              "file that is reached twice is taken once. Each is one text.",
       .is_path = true,
       .reads = Reads::files},
      {.path = "data.jsonl",
       .slot = field<s, &D::jsonl>,
       .doc = "Instead of `text`: files of records, a JSON object in each line, or folders and "
              "patterns of them ([data.md](data.md)): conversations (`messages`), `prompt` and "
              "`completion`, `text`, `prompt`, `chosen` and `rejected`, `input_ids`, `text` or "
              "`image` and `label`, or "
              "`words` and `labels`. Files of other formats are read where a plugin is a source of "
              "them: `.parquet`, `.arrow` ([sources.md](sources.md)).",
       .is_path = true,
       .reads = Reads::files},
      {.path = "data.tokens",
       .slot = field<s, &D::tokens>,
       .doc = "Instead of `text`: NumPy files (`.npy`) of ready token ids, one dimension, "
              "little-endian u16, u32 or i32. Needs `model.vocab` or `model.from`.",
       .is_path = true,
       .reads = Reads::files},
      {"data.sources", field<s, &D::sources>,
       "Instead of the three: several sources, tables with one of `text`, `jsonl` and `tokens` and "
       "a `weight` (default 1): the share of a step's rows that are of the source. One of `jsonl` "
       "may have "
       "`columns` of its own."},
      {"data.columns", field<s, &D::columns>,
       "How the records of `jsonl` call their members, such as `{ messages = \"dialog\", role = "
       "\"speaker\" }` ([record-forms.md](record-forms.md))."},
      {"data.labels", field<s, &D::labels>,
       "With `train.objective=classification` and `token_classification`: the classes in the order "
       "of their numbers. Empty: "
       "those of the model's folder, if it knows all labels of the data; otherwise those of the "
       "data, numbers by their values and others by their letters."},
      {.path = "data.tokenizer",
       .slot = field<s, &D::tokenizer>,
       .doc = "How text becomes tokens ([tokenizers.md](tokenizers.md)): a folder or file of a "
              "tokenizer, "
              "`bytes` (every byte is a token, 256 symbols), or the name of a plugin. `auto`: the "
              "tokenizer in the folder or file of `model.from`, or `bytes` where it has none.",
       .reads = Reads::model},
      {"data.tokenizer_options", field<s, &D::tokenizer_options>,
       "Options of the tokenizer's kind, such as `{ add_bos = false }` of SentencePiece."},
      {.path = "data.chat_template",
       .slot = field<s, &D::chat_template>,
       .doc = "A file with the template that makes a text of a conversation. Empty: that of the "
              "tokenizer's folder.",
       .is_path = true,
       .reads = Reads::files},
      {"data.template_options", field<s, &D::template_options>,
       "Variables of the template, such as `{ enable_thinking = false }`. `now`, such as "
       "\"2026-01-31\", is the date that its strftime_now reads."},
      {"data.template_members", field<s, &D::template_members>,
       "Members of records that are variables of the template too, such as `[\"documents\"]`. "
       "`tools` and the members of `chat_template_kwargs` always are; others are not."},
      {"data.end_tokens", field<s, &D::end_tokens>,
       "Tokens that end generated texts besides the tokenizer's own, such as `[\"<|eot_id|>\"]`."},
      {"data.special_tokens",
       words<s, &D::special_tokens, data::SpecialText>({{"read", data::SpecialText::read},
                                                        {"letters", data::SpecialText::letters},
                                                        {"refuse", data::SpecialText::refuse}}),
       "What a special token is that is written in a text, a prompt or a completion: the token "
       "(`read`), its letters (`letters`), or an error (`refuse`). Generation, evaluation and "
       "serving of the run's checkpoints do the same ([data.md](data.md#special-tokens))."},
  };
}

/// What of the data is trained, and in which rows.
std::vector<Key> row_keys() {
  using D = DataConfig;
  constexpr auto s = &RunSpec::data;
  return {
      {"data.train_on",
       words<s, &D::train_on, data::TrainOn>(
           {{"answers", data::TrainOn::answers}, {"all", data::TrainOn::all}}),
       "Whose loss counts. `answers`: of conversations the assistant's answers, of prompts the "
       "completion, of texts everything. `all`: every token."},
      {"data.allow_dropped", field<s, &D::allow_dropped>,
       "Kinds of contents that the template may leave out of a conversation; they are counted: "
       "`content`, `system`, `reasoning`, `tool_calls`, `tool_results`, `tools`. Others are an "
       "error ([conversations.md](conversations.md#what-a-template-leaves-out))."},
      {"data.bad_records",
       words<s, &D::bad_records, BadRecords>(
           {{"refuse", BadRecords::refuse}, {"skip", BadRecords::skip}}),
       "What is done with records that have a fault: the run is refused, and says where they are "
       "(`refuse`), or they are left out and counted (`skip`)."},
      {"data.too_long",
       words<s, &D::too_long, data::TooLong>({{"error", data::TooLong::error},
                                              {"skip", data::TooLong::skip},
                                              {"cut", data::TooLong::cut}}),
       "What is done with a conversation or completion of more than `seq_len` + 1 tokens: it is an "
       "`error`, it is left out (`skip`), or its end is (`cut`). The table before the run says how "
       "many."},
      {"data.packing",
       words<s, &D::packing, RowContent>(
           {{"none", RowContent::one_document}, {"documents", RowContent::documents}}),
       "What a row holds of conversations and completions ([data.md](data.md#packing)). `none`: "
       "one of them, and padding. `documents`: as many whole ones as fit; each is computed as if "
       "it were alone."},
      {"data.seq_len", field<s, &D::seq_len>,
       "Tokens in a sequence. Window `w` is tokens `[w*seq_len, (w+1)*seq_len + 1)`: inputs are "
       "all but the last, targets all but the first.",
       from(1, largest_size)},
      {"data.order",
       words<s, &D::order, RowOrder>(
           {{"shuffled", RowOrder::shuffled}, {"sequential", RowOrder::sequential}}),
       "`sequential`: row `i` of step `s` is window `s*batch + i`. `shuffled`: a new permutation "
       "of the windows every epoch, a function of `train.seed` and the epoch alone."},
      {.path = "data.exclude",
       .slot = field<s, &D::exclude>,
       .doc = "A file with rows that are left out, a place `FILE:LINE` in each line as `tessera "
              "data where` prints it ([questions.md](questions.md)). A run that is continued "
              "leaves them out from there on, and its checkpoints say so; the rows after them move "
              "forward.",
       .is_path = true,
       .reads = Reads::files},
      {"data.validation", field<s, &D::validation>,
       "Share of the tokens or documents, at their end, that is never trained on. 0: no "
       "validation.",
       below_one},
      {.path = "data.validation_files",
       .slot = field<s, &D::validation_files>,
       .doc = "Files to validate with, instead of a share of the data: by their names `.npy`, "
              "`.jsonl`, or text.",
       .is_path = true,
       .reads = Reads::files},
      {"data.validation_windows", field<s, &D::validation_windows>,
       "Windows of a validation, spread evenly over that part and rounded down to whole "
       "batches. 0: all.",
       from(0)},
      {"data.validate_every", field<s, &D::validate_every>,
       "Steps between two validations; there is always one at the end. 0: only at the end.",
       from(0)},
  };
}

}  // namespace tessera::runs
