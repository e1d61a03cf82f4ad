"""Dense retrieval with a tiny random BERT: held against a plain comparison of all vectors in torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agents.clients.encoder import TransformerEncoder
from envs.errors import ConfigError
from envs.retrieval.dense import INDEX, Dense, Vectors
from envs.retrieval.remote import RemoteRetriever
from envs.retrieval.service import retriever_app
from flows.commands.serve import make_retriever
from tests.envs.test_retrieval import WORDS, ids, texts, write_corpus
from tests.support.http_server import serving

faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
COUNT = 100
PASSAGES = texts(COUNT, seed=3)
QUERIES = [" ".join(text.split()[:4]) for text in PASSAGES[::10]]


def save_tiny_bert(folder: Path, *, seed: int = 0) -> Path:
    """A BERT of 32 numbers a token, with a word piece for each word of the corpus."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", "passage", ":", '"', *WORDS]
    (folder / "vocab.txt").write_text("\n".join([*pieces, *(f"t{n}" for n in range(COUNT))]))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model is none the faster for two, which wait for each other by spinning."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-e5")


@pytest.fixture(scope="module")
def encoder(model: Path) -> TransformerEncoder:
    return TransformerEncoder(str(model))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "c.jsonl", PASSAGES)


def plainly(model: Path, texts: Sequence[str]) -> list[list[float]]:
    """E5's vectors as its model card makes them, one text at a time: no padding, no mask."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, bert = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    vectors = []
    for text in texts:
        with torch.no_grad():
            state = bert(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
        vectors.append((state / state.norm()).tolist())
    return vectors


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def test_the_nearest_by_e5s_vectors_are_found(model: Path, encoder: TransformerEncoder, corpus: Path) -> None:
    dense = Dense(corpus, encoder)
    results = dense.search_sync(QUERIES, top_k=3)
    passages = plainly(model, [f'passage: "T{n}"\n{text}' for n, text in enumerate(PASSAGES)])
    for query, best_passages in zip(
        plainly(model, [f"query: {text}" for text in QUERIES]), results, strict=True
    ):
        scores = [dot(query, passage) for passage in passages]
        best = sorted(range(COUNT), key=lambda n: -scores[n])[:3]
        assert [left.score for left in best_passages] == pytest.approx([scores[n] for n in best], abs=1e-4)
        assert (
            best_passages[0].contents == f'"T{ids(best_passages)[0]}"\n{PASSAGES[int(ids(best_passages)[0])]}'
        )
        assert scores[int(best_passages[0].passage_id)] == pytest.approx(max(scores), abs=1e-4)


async def test_another_model_in_the_same_folder_gets_its_own_index(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "trained-e5"
    versions = set()
    for seed in (0, 1):
        save_tiny_bert(folder, seed=seed)
        dense = Dense(corpus, TransformerEncoder(str(folder)))
        (best,) = (await dense.search(QUERIES[:1], top_k=1))[0]
        (query,) = plainly(folder, [f"query: {QUERIES[0]}"])
        passages = plainly(folder, [f'passage: "T{n}"\n{text}' for n, text in enumerate(PASSAGES)])
        assert best.score == pytest.approx(max(dot(query, passage) for passage in passages), abs=1e-4)
        versions.add(await dense.version())
    assert len(versions) == 2
    again = Dense(corpus, TransformerEncoder(str(folder)))
    assert await again.version() in versions


def test_only_models_of_that_family_get_its_words(model: Path, tmp_path: Path) -> None:
    right = tmp_path / "plain"
    right.symlink_to(model)
    (vector,) = TransformerEncoder(str(right)).queries(["wb1x wc2x"])
    assert vector.tolist() == pytest.approx(plainly(model, ["wb1x wc2x"])[0], abs=1e-5)


@pytest.mark.parametrize("path", ["models--BAAI--bge-tiny/snapshots/a5b1e5e8", "wiki-18-e5/bge-tiny"])
def test_the_family_is_a_word_of_the_models_name(path: str, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / path
    folder.parent.mkdir(parents=True)
    folder.symlink_to(model)
    encoder = TransformerEncoder(str(folder))
    sentence = "Represent this sentence for searching relevant passages: wb1x wc2x"  # BGE's model card
    assert encoder.queries(["wb1x wc2x"])[0].tolist() == pytest.approx(
        plainly(model, [sentence])[0], abs=1e-5
    )
    text = "wb1x wc2x"
    assert encoder.passages([text])[0].tolist() == pytest.approx(plainly(model, [text])[0], abs=1e-5)


async def test_cells_find_most_of_what_all_vectors_do_and_the_same_every_time(
    encoder: TransformerEncoder, corpus: Path
) -> None:
    exact = Dense(corpus, encoder).search_sync(QUERIES, top_k=1)
    ivf = Dense(corpus, encoder, kind="ivf")
    results = ivf.search_sync(QUERIES, top_k=1)
    assert results == Dense(corpus, encoder, kind="ivf").search_sync(QUERIES, top_k=1)
    same = sum(a[0].passage_id == b[0].passage_id for a, b in zip(exact, results, strict=True))
    assert same >= len(QUERIES) - 2
    versions = [await left.version() for left in (ivf, Dense(corpus, encoder))]
    assert len(set(versions)) == 2


def test_an_existing_index_is_used_and_one_that_does_not_fit_is_an_error(
    encoder: TransformerEncoder, corpus: Path, tmp_path: Path
) -> None:
    flat = Dense(corpus, encoder)
    exact_results = flat.search_sync(QUERIES, top_k=2)
    (index_folder,) = [folder for folder in tmp_path.iterdir() if folder.name.startswith("c.jsonl.dense-")]
    dense = Dense(corpus, encoder, index=index_folder / INDEX)
    assert dense.search_sync(QUERIES, top_k=2) == exact_results
    right = write_corpus(tmp_path / "other.jsonl", PASSAGES[:10])
    with pytest.raises(ConfigError, match=r"expected vectors of the 10 passages .* got 100"):
        Dense(right, encoder, index=index_folder / INDEX).search_sync(["q"], top_k=1)
    (tmp_path / "cut.faiss").write_bytes((index_folder / INDEX).read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"cut\.faiss: no faiss index"):
        Dense(corpus, encoder, index=tmp_path / "cut.faiss").search_sync(["q"], top_k=1)

    class Wider:
        name = "wider"

        def queries(self, texts: Sequence[str]) -> Vectors:
            return encoder.queries(texts).repeat(2, axis=1)

        passages = queries

    with pytest.raises(ConfigError, match="vectors have 64 dimensions, the index has 32"):
        Dense(corpus, Wider(), index=index_folder / INDEX).search_sync(["q"], top_k=1)


def test_a_missing_encoder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoder .* cannot be loaded"):
        TransformerEncoder(str(tmp_path / "none"))


async def test_it_is_served_as_the_command_line_asks_for_it(
    model: Path, encoder: TransformerEncoder, corpus: Path
) -> None:
    retriever = make_retriever(corpus, encoder=str(model), kind="flat", index=None)
    async with serving(retriever_app(retriever, top_k=3)) as url:
        client = RemoteRetriever(url)
        assert await client.version() == await Dense(corpus, encoder).version()
        results = await client.search(QUERIES, top_k=2)
        await client.close()
    here = Dense(corpus, encoder).search_sync(QUERIES, top_k=2)
    assert [ids(best_passages) for best_passages in results] == [ids(best_passages) for best_passages in here]
    with pytest.raises(ConfigError, match="name its model with --encoder"):
        make_retriever(corpus, encoder=None, kind="ivf", index=None)
    with pytest.raises(ConfigError, match="--index: there is no file"):
        make_retriever(corpus, encoder=str(model), kind="flat", index=corpus.with_name("none"))
