export module tessera.data:labelled;

import tessera.base;

export namespace tessera::data {

/// Records with the name of a class each.
class LabelledRecords {
 public:
  virtual ~LabelledRecords() = default;
  virtual std::int64_t size() const = 0;
  /// "chats.jsonl:17".
  virtual std::string where(std::int64_t record) const = 0;
  /// The names of the classes, each once.
  virtual const std::vector<std::string>& labels() const = 0;
  /// Whether a record, or one of its words, has the label at this place there.
  virtual bool has_label(std::int64_t record, std::int64_t label) const = 0;
};

/// The names of classes, by their first occurrence, and that of each record.
class LabelNames {
 public:
  LabelNames() = default;
  /// `places`: of each record's name among `names`.
  LabelNames(std::vector<std::string> names, std::vector<std::uint32_t> places);
  /// The label of the next record, of `file`. Error (input): see place().
  void add(const std::string& label, const std::string& file);
  /// The place of a name, which may be new. Error (input) that names the file: there are more than
  /// 10,000 different ones.
  std::uint32_t place(const std::string& label, const std::string& file);
  /// That of a known name.
  std::int64_t place(const std::string& label) const { return places_.at(label); }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<std::uint32_t>& places() const { return of_; }
  std::int64_t of(std::int64_t record) const { return of_.at(static_cast<std::size_t>(record)); }

 private:
  std::vector<std::string> names_;
  std::vector<std::uint32_t> of_;
  std::map<std::string, std::uint32_t> places_;
};

}  // namespace tessera::data
