"""What a million tokens cost, input and output apart."""

from dataclasses import dataclass

from orchestrator.analysis.points import StoredPoint

RATIO = 4.0  # an output token costs as many input tokens, until the page's slider is moved


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """USD per million tokens.

    An output token is priced as ``ratio`` times an input token, and both prices together pay for
    the hour: ``input = usd_per_hour / (3600 (tokens in/s + ratio tokens out/s))``. ``input`` and
    ``output`` are None where prompts were not counted. ``output_alone``: the price of an output
    token if input were free, which is the convention of most tools.
    """

    input: float | None
    output: float | None
    output_alone: float


def token_price(point: StoredPoint, ratio: float = RATIO) -> TokenPrice | None:
    """The price at the load of this point.

    None: the deployment has no price, or nothing was answered. ``prices.js`` computes the same.
    """
    usd_per_hour = point.deployment.usd_per_hour
    output_rate = point.figures.output_token_throughput
    if not usd_per_hour or not output_rate:
        return None
    usd_per_million_s = usd_per_hour / 3600 * 1e6
    input_rate = point.figures.input_token_throughput
    if input_rate is None:
        return TokenPrice(None, None, usd_per_million_s / output_rate)
    of_input = usd_per_million_s / (input_rate + ratio * output_rate)
    return TokenPrice(of_input, ratio * of_input, usd_per_million_s / output_rate)
