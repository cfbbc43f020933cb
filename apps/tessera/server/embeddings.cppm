export module tessera.app.server:embeddings;

import tessera.app.base;
import tessera.text;
import :http_server;
import :served_adapters;
import :server_counts;
import :text_request;
import :jobs;

// Vectors of texts, in the form of OpenAI's interface.

export namespace tessera::app {

/// Of which tokens' hidden states a text's vector is made.
enum class EmbeddingPooling : std::uint8_t { first, mean, last };

/// What the folder of a model says of it: 1_Pooling/config.json of Sentence Transformers. Nothing:
/// there is no such file. Error (input): it says something else than one of these.
std::optional<EmbeddingPooling> stored_pooling(const std::string& folder);

/// The first `dimensions` of these numbers (0: all), scaled to a vector of length 1.
std::vector<double> unit_vector(std::vector<double> values, std::int64_t dimensions);

/// The vectors of an answer in the order of their texts.
std::string embeddings_json(std::span<const std::vector<double>> vectors, bool base64,
                            const std::string& model, std::int64_t tokens);

/// Collects the vectors of a request and answers when it has all. The thread that has the model
/// calls it.
class EmbeddingAnswer {
 public:
  /// The counts must outlive it. `tokens`: of all texts.
  EmbeddingAnswer(HttpResponder responder, ServerCounts& counts, EmbeddingRequest request,
                  std::string model, std::int64_t tokens);
  ~EmbeddingAnswer();
  EmbeddingAnswer(const EmbeddingAnswer&) = delete;
  EmbeddingAnswer& operator=(const EmbeddingAnswer&) = delete;

  void set(std::size_t text, std::vector<double> values);
  /// The request gets this instead.
  void refuse(const HttpAnswer& answer, RequestEnd how);
  bool over() const { return over_; }

 private:
  void counted(RequestEnd how);

  HttpResponder responder_;
  ServerCounts& counts_;
  EmbeddingRequest request_;
  std::string model_;
  std::int64_t tokens_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<std::vector<double>> vectors_;
  std::size_t left_;
  std::atomic<bool> over_ = false;
};

/// A text whose vector is made of the last hidden states of a model of the next token.
class EmbeddingJob : public ModelJob {
 public:
  /// `text`: its number in the answer. `pooling`: mean or last.
  EmbeddingJob(std::vector<std::int64_t> tokens, EmbeddingPooling pooling, std::size_t text,
               std::shared_ptr<EmbeddingAnswer> answer, AdapterUse adapter);

 private:
  std::optional<text::EngineRequest> request(const std::shared_ptr<ModelJob>& self,
                                             const text::TextModel& model,
                                             const std::function<bool()>& wanted) override;
  void fail_with(const std::exception& error) override;

  std::vector<std::int64_t> tokens_;
  EmbeddingPooling pooling_;
  std::size_t text_;
  std::shared_ptr<EmbeddingAnswer> answer_;
  AdapterUse adapter_;
};

}  // namespace tessera::app
