module tessera.app.server:answer_writer;

import tessera.app.base;
import tessera.tokenize;
import tessera.text;
import :http_server;
import :text_request;
import :answer_format;
import :jobs;
import :server_counts;

// From the texts that jobs make to the answer of a request.

namespace tessera::app {

/// What a text of an answer begins with.
struct AnswerPrompt {
  std::vector<std::int64_t> tokens;
  std::optional<std::string> echo = std::nullopt;  // the prompt, where the text begins with it
};

/// What a request asks for, ready for the model.
struct AnswerRequest {
  TextRequest request;
  std::vector<AnswerPrompt> prompts;  // each has request.count texts
  const AnswerFormat* format = nullptr;
  std::optional<text::ToolCallForm> calls = std::nullopt;  // in which tools are called
  std::vector<text::Tool> tools = {};                      // that may be called
  bool several_calls = true;
};

/// Writes the answer of a request, whole or as events. The thread that makes the texts calls it.
class AnswerWriter : public std::enable_shared_from_this<AnswerWriter> {
 public:
  /// The tokenizer and the counts must outlive it.
  AnswerWriter(HttpResponder responder, AnswerHead head, const tokenize::Tokenizer& tokenizer,
               ServerCounts& counts, AnswerRequest asked);
  ~AnswerWriter();
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;

  std::size_t texts() const { return texts_.size(); }
  const std::vector<std::int64_t>& prompt(std::size_t index) const {
    return asked_for(index).tokens;
  }
  /// What the job of one of the texts calls.
  AnswerReceiver receiver(std::size_t index);
  /// The jobs of all texts: where one fails, the others end.
  void set_jobs(std::vector<std::weak_ptr<AnswerJob>> jobs) { jobs_ = std::move(jobs); }
  /// The request gets this instead, and its jobs end.
  void refuse(const HttpAnswer& answer, RequestEnd how);

 private:
  struct Text {
    TokenNames names;
    std::optional<text::ToolCallReader> calls = std::nullopt;
    std::size_t called = 0;
    AnswerText whole = {};
    bool begun = false;
  };

  const AnswerPrompt& asked_for(std::size_t index) const;
  std::optional<std::vector<AnswerToken>> named(Text& text,
                                                std::span<const text::TokenLikelihoods> tokens);
  /// Adds what was read of a text with calls of tools.
  void add_calls(std::size_t index, const text::ToolCallReader::Part& read, AnswerText& text);
  void add_part(std::size_t index, const text::TextPart& part);
  void end_text(std::size_t index, const text::GeneratedText& text);
  void finish();
  void write(const std::string& event);
  /// The events before the first part of a text.
  std::string beginning(std::size_t index);
  void counted(RequestEnd how);
  double seconds() const;

  HttpResponder responder_;
  AnswerHead head_;
  const tokenize::Tokenizer& tokenizer_;
  ServerCounts& counts_;
  AnswerRequest asked_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<Text> texts_;
  std::vector<std::weak_ptr<AnswerJob>> jobs_;
  TokenUsage usage_;
  std::size_t left_;                // texts that have not ended
  bool has_token_ = false;          // of any text
  bool begun_ = false;              // of a stream: an event was written
  std::atomic<bool> over_ = false;  // nothing more is written
};

}  // namespace tessera::app
