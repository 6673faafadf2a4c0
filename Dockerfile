# The command `standfast` with this repository's application. Put yours in the place of workflows/ and activities/.
FROM python:3.13.5-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY standfast ./standfast
# Versions are those of constraints.txt, with which the tests run.
RUN python -m venv /app \
    && /app/bin/pip install --no-cache-dir --constraint constraints.txt \
        ".[httpx,openai,anthropic,prices,mcp,web,postgres]" "aiosmtpd>=1.4.6" \
    && python -m venv /tools \
    && /tools/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0 \
    && /tools/bin/cyclonedx-py environment /app/bin/python --output-file /app/sbom.cdx.json \
    && /app/bin/pip uninstall --yes pip \
    && find /app -name __pycache__ -prune -exec rm -r {} +

FROM python:3.13.5-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin standfast
COPY --from=build /app /app
WORKDIR /srv
COPY activities ./activities
COPY workflows ./workflows
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["standfast"]
CMD ["--help"]
