export module tessera.runs:sources;

import tessera.base;
import tessera.data;
import tessera.hub;
import :run_model;
import :spec;

// What a run's data are read from.

export namespace tessera::runs {

/// Files of one kind, opened: tokens one after the other, or documents.
struct OpenedSource {
  std::shared_ptr<const data::TokenSource> tokens = {};
  std::shared_ptr<const data::Documents> documents = {};
  std::string left_out = {};  // what is below named folders, or in files, and is not used
  double weight = 1;
  std::string key = {};  // of the config, for errors: "data.text"

  std::size_t files() const;
  std::string content_hash() const;
};

/// Opens the data of a config: its sources, or the files of data.validation_files. `vocab`: the
/// model's number of token ids (ready-made tokens only). Errors (input), with key, file and line: a
/// file is missing, unreadable or of another kind; what is wrong with its texts and records.
std::vector<OpenedSource> open_sources(const RunSpec& config, std::int64_t vocab,
                                       const std::shared_ptr<const hub::ModelTokenizer>& tokenizer);
std::vector<OpenedSource> open_validation(
    const RunSpec& config, std::int64_t vocab,
    const std::shared_ptr<const hub::ModelTokenizer>& tokenizer);

/// How texts and records of this config become tokens. Errors (input): the chat template cannot be
/// read, or has what is not supported.
std::shared_ptr<const data::ExampleMaker> example_maker(
    const RunSpec& config, const std::shared_ptr<const hub::ModelTokenizer>& tokenizer);

}  // namespace tessera::runs
