// chat MODEL QUESTION [IMAGE]: prints the answer as it comes, then what it cost.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "hadal/hadal.hpp"

namespace {

int Fail(const hadal::Error& error) {
  std::fprintf(stderr, "%s: %s\n", std::string(hadal::ErrorCodeName(error.code)).c_str(), error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: %s MODEL QUESTION [IMAGE]\n", argv[0]);
    return 2;
  }
  hadal::EngineOptions options;
  options.max_model_len = 4096;
  hadal::Result<hadal::Engine> engine = hadal::Engine::Load(argv[1], options);
  if (!engine) return Fail(engine.error());
  std::fprintf(stderr, "%s; %s\n", engine->info().description.c_str(), engine->info().cache.c_str());

  std::vector<hadal::ContentPart> question;
  if (argc == 4) {
    std::ifstream file(argv[3], std::ios::binary);
    question.push_back(hadal::ContentPart::Image({std::istreambuf_iterator<char>(file), {}}));
  }
  question.push_back(hadal::ContentPart::Text(argv[2]));

  hadal::Request request;
  request.messages = {hadal::ChatMessage::User(std::move(question))};
  request.thinking = hadal::Thinking::kOff;
  request.sampling.temperature = 0;
  hadal::Result<hadal::Stream> stream = engine->Start(request);
  if (!stream) return Fail(stream.error());
  for (std::vector<hadal::Event> events = stream->Next(); !events.empty(); events = stream->Next()) {
    for (const hadal::Event& event : events) {
      if (event.kind == hadal::Event::Kind::kContent) std::fputs(event.text.c_str(), stdout);
    }
    std::fflush(stdout);
  }
  std::fputs("\n", stdout);
  const hadal::Result<hadal::Answer> answer = stream->Finish();
  if (!answer) return Fail(answer.error());
  std::fprintf(stderr, "%lld prompt tokens, %zu generated, %.1f tokens/s\n",
               static_cast<long long>(answer->prompt_tokens), answer->token_ids.size(),
               answer->decode_tokens_per_second);
  return 0;
}
