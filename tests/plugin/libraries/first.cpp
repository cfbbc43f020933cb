extern "C" const char* second_words();
extern "C" __attribute__((visibility("default"))) const char* first_words() {
  return second_words();
}
