export module tessera.runs:sources;

import tessera.base;
import tessera.data;
import tessera.hub;
import :run_model;
import :spec;

// What a run's data are read from.

export namespace tessera::runs {

/// What makes rows of files.
struct DataReader {
  std::shared_ptr<const hub::ModelTokenizer> tokenizer = {};
  std::int64_t vocab = 0;  // the model's number of token ids (ready-made tokens only)
  /// The token behind a row's end; none: the tokenizer's.
  std::optional<std::int64_t> padding = {};
  /// Rows are images of this form; none: they are tokens.
  std::optional<data::ImageForm> images = {};
  std::int64_t image_tokens = 0;  // that the model makes of an image
};

/// The token that a tokenizer has behind a text's end: for padding, else for the end, else 0.
std::int64_t padding_of(const hub::ModelTokenizer& tokenizer);

/// Files of one kind, opened: tokens one after the other, documents, or images with labels.
struct OpenedSource {
  std::shared_ptr<const data::TokenSource> tokens = {};
  std::shared_ptr<const data::Documents> documents = {};
  std::shared_ptr<const data::LabelledImages> images = {};
  std::string left_out = {};  // what is below named folders, or in files, and is not used
  double weight = 1;
  std::string key = {};                 // of the config, for errors: "data.text"
  std::vector<std::string> paths = {};  // of its files

  std::size_t files() const;
  std::string content_hash() const;
  /// What is read from it: tokens, or those of documents; images.
  std::int64_t size() const;
  /// Its records with labels. Error: they have none.
  const data::LabelledRecords& labelled() const;
};

/// Opens the data of a config: its sources, or the files of data.validation_files. Errors (input),
/// with key, file and line: a file is missing, unreadable or of another kind; what is wrong with
/// its texts, records and images.
std::vector<OpenedSource> open_sources(const RunSpec& config, const DataReader& reader);
std::vector<OpenedSource> open_validation(const RunSpec& config, const DataReader& reader);

/// How texts and records of this config become tokens. Errors (input): the chat template cannot be
/// read, or has what is not supported.
std::shared_ptr<const data::ExampleMaker> example_maker(
    const RunSpec& config, const std::shared_ptr<const hub::ModelTokenizer>& tokenizer);

}  // namespace tessera::runs
