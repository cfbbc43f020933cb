export module tessera.runs:export_record;

import tessera.base;
import tessera.checkpoint;
import :run_record;

// The record in an exported model's folder: the run's, and what was written of it.

export namespace tessera::runs {

/// How a checkpoint was exported.
struct ExportForm {
  std::string format = {};  // "transformers", "gguf", "adapter"
  std::string dtype = {};   // as the command had it; empty: that of the model
  bool tokenizer = true;
  std::int64_t max_file_bytes = 0;  // 0: one file
};

/// A file, by its name in the folder or its path.
struct RecordedFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string hash = {};  // empty: not known
};

/// What record.json has.
struct ExportRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::string weights = {};  // stored_hash of the checkpoint's model
  ExportForm form = {};
  std::vector<RecordedFile> files = {};  // of the export, without README.md and record.json
  std::vector<RecordedFile> data = {};   // that the run has read
  std::string excluded = "[]";           // rows, as the checkpoint has them (to_json(Exclusions))
  RunRecord record = {};
};

/// A hash of the names, types, shapes and elements of tensors whose names begin with `prefix`, in
/// the order of the names. It does not depend on the mesh, nor on files. Reads a tensor at a time.
std::string stored_hash(const TensorSource& source, std::string_view prefix);

/// The record that a checkpoint has. Problem: there is none, it is damaged, or of another step.
ReadRecord stored_record(const CheckpointReader& checkpoint);

/// Writes record.json beside all other files of an export. Returns "", or why there is none: the
/// checkpoint has no record.
std::string write_export_record(const CheckpointReader& checkpoint, const std::string& folder,
                                const ExportForm& form);

/// Error (input): there is no record.json in the folder, or it is damaged.
ExportRecord read_export_record(const std::string& folder);

/// Files of an export that are not as they were written, a line each.
std::vector<std::string> changed_exports(const ExportRecord& record, const std::string& folder);

/// Of a file. Error (input): it cannot be read.
RecordedFile recorded_file(const std::string& path, const std::string& name);

}  // namespace tessera::runs
