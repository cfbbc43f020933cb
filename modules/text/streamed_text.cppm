export module tessera.text:streamed_text;

import tessera.base;

// Text that is shown while it is made.

export namespace tessera::text {

/// Parts of a text become parts that can be shown: none ends within a character of UTF-8, what is
/// not UTF-8 becomes U+FFFD, and the text ends before the first of the stop strings.
class StreamedText {
 public:
  /// Error (input): a stop string is empty.
  explicit StreamedText(std::vector<std::string> stop);

  /// The text that can be shown after this part. The beginning of a character or of a stop string
  /// is kept until more is known. Nothing after a stop string.
  std::string add(std::string_view part);
  /// What was kept.
  std::string finish();
  /// Whether a stop string has come.
  bool stopped() const { return stopped_; }

 private:
  std::string whole_characters(std::string_view part);
  std::string before_stop(std::string_view text);

  std::vector<std::string> stop_;
  std::string bytes_;  // the beginning of a character
  std::string text_;   // may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace tessera::text
